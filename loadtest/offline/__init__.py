"""
The offline benchmark: how fast transformers and vLLM are at the same work, without a server between.

Everything that needs an engine happens in `engine_worker.py`, run by the engine's own interpreter; nothing here imports
torch, transformers or vLLM.
"""
