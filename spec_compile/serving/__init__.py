"""`spec-compile serve`: a bundle behind an HTTP server that speaks OpenAI's protocol."""
