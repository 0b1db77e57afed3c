"""A journal on files: framed, checksummed segments of Arrow record batches, and an end mark.

| module | has |
|---|---|
| `segment`, `frames`, `frame_index`, `zone_maps` | the file format, and the files beside segments |
| `file_log`, `file_journal` | reads of one log, and of a journal of one log |
| `file_writer`, `lock` | durable append, and the turns of several writers |
| `retention_base` | what retention dropped |
"""
