"""What other servers need to run a bundle: no torch, and nothing of the compiler."""
