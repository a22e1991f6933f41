"""SSH to the N workers of a slice: connect, push, start, follow, stop, collect. `fleet.Fleet` is the way in."""
