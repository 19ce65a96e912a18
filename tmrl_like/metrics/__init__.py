"""Numbers about a run: collected per round (`rounds`), written to where they are wanted
(`sinks`).
"""
