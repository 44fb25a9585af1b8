"""What runs inside the peers' environments: servers for engines that have none, and a converter.

Only the standard library and the peer itself can be imported here.
"""
