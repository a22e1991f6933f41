"""Effects: everything that a program can ask of the outside world, each a value with the code that performs it.

Every room of `engine` imports this package; it imports `core`, `errors`, and the types of `ledger` and `remote`. An effect
makes one attempt and decides nothing; retries and conclusions belong to the programs.
"""
