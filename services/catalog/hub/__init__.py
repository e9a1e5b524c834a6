"""A process of its own that talks to hubs and buckets with their unmodified client libraries.

It is given one request on its standard input, secrets included, connects to public servers only,
and writes to one folder, which its parent removes. ``calling`` is the parent's side.
"""
