"""What speculation could give: acceptance in closed form, and the ceiling of optimal transport."""
