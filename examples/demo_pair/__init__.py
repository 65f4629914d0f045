"""Parts of the script that trains the demonstration pair: text, tokenizer, models, measurement."""
