"""One file per engine that can run a bundle's graphs."""
