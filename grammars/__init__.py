"""Constraints: front ends and the native matcher."""
