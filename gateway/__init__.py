"""
One OpenAI-compatible endpoint over a fleet of vLLM workers.

Importing this package is free of side effects and needs the standard library only.
"""

__version__ = "0.1.0"
