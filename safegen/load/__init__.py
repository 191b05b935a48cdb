"""Load tests: requests as users make them, and what an LLM's answers to them come to."""
