"""Files and folders on this machine (`paths`, `config_constants`), and experiments as files
(`settings`, `loading`).
"""
