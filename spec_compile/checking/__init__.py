"""What `spec-compile check` proves of a bundle, one check a file."""
