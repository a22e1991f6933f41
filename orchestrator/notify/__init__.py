"""Who is told what becomes of a run: messages to the receiver that `notify:` names, in a job or in the settings.

The ledger has every event before anybody is told, so a message is lost by no death of a process: `events` makes messages of
what the ledger has, `outbox` keeps them until they are delivered, and `sender`, a process of its own, delivers them, so that
no command waits for a receiver. `notifier` is what a session has of it: it starts that process.

`deliver` of `delivery` and the values of `messages` know neither ledger nor outbox: what delivers from another machine uses
them, too. An address is a secret: the outbox says where it is, in the settings or in a variable, and nothing here writes it
down.
"""
