"""Graph passes: what makes one speculative-decoding graph out of two captured models."""
