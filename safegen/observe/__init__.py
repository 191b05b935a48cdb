"""What an LLM says about itself: `Stats`, the same as OpenMetrics text, and the counts behind both."""
