"""What speculation will gain: acceptance from measured laws, time from measured calls."""
