"""The code interpreter: code that models write, run in containers.

provider.py   tool of a request    -> a container, `CodeTool`
containers.py code in a container  -> files in, code, files out; which interpreters live
interpreter.py                        one process in a sandbox and what is said to it
guest.py                              the program in there
"""
