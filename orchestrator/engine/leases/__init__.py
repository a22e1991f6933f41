"""What keeps the guarantee: obligations, release with proof of absence, lease renewal, recovery, and gc.

Programs over effects. All other rooms of `engine` import this one; it imports `effects` and `runtime.retry`. Nothing about
jobs or candidates belongs here.
"""
