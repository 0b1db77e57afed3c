"""The registry of servers: each server announces its address and its shard of the keys.

`announcement` is a server's own description, `announcer` writes and reads announcements, `location` finds the servers
of a key. `location` and `announcement` do no I/O: clients use both too.
"""
