"""Distil a small draft from a Llama-shaped target: generate text, train, measure."""
