"""Cloud TPU: the client, the request of a create call, and what replies say.

Enter through `client.connect`, which keeps credentials apart. It stands on `places.google`.
"""
