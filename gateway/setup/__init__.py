"""
Setting up: what the machine lacks, the light environment, the engine environment, the embedded model.

Everything that runs before the light environment exists (bootstrap, light, facts, doctor, completion, installer,
progress) needs the standard library only.
"""
