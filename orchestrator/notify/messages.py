"""Messages, and the JSON of one or several of them: one shape that Slack, Discord, Mattermost and ntfy show. Pure.

Slack and Mattermost show `text`, Discord `content`, and ntfy what HEADERS say. `tpujob` is for programs. Several
messages to one receiver are one request: twelve runs that end at once are one line each, not twelve interruptions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_LINES, LINE_CHARS = 20, 300
MOST_CHARS = 1900  # Discord takes 2000
MOST_BYTES = 3800  # ntfy shows 4096; more would be a file
# ntfy shows a JSON body as it is, unless it is told which part of it is the message. To others these headers say nothing.
HEADERS = {"Content-Type": "application/json", "X-Template": "yes", "X-Title": "tpujob", "X-Message": "{{.content}}"}
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Message:
    """What happened to a run or a slice. `id`: the same one is sent once. `at`: unix seconds. `fields`: JSON values."""

    id: str
    event: str  # one of `job.rules.notify.EVENTS`, or `test`
    at: float
    text: str  # shown as one line
    run: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return what `message_of` reads."""
        own = {"id": self.id, "event": self.event, "at": self.at, "text": self.text, "run": self.run}
        return {**own, **self.fields}


def message_of(shape: Mapping[str, Any]) -> Message:
    """Return the message that `as_json` described."""
    own = ("id", "event", "at", "text", "run")
    more = {key: value for key, value in shape.items() if key not in own}
    return Message(**{key: shape[key] for key in own}, fields=more)


def payload(messages: Sequence[Message]) -> dict[str, Any]:
    """Return the JSON that tells these messages, the oldest first."""
    told = sorted(messages, key=lambda each: each.at)
    text = in_words(told)
    return {
        "text": text.replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;"),  # for Slack `<!here>` calls everybody
        "content": text,
        "allowed_mentions": {"parse": []},  # so does `@everyone` for Discord
        "tpujob": {"schema": SCHEMA, "count": len(told), "messages": [each.as_json() for each in told[:MOST_LINES]]},
    }


def in_words(messages: Sequence[Message]) -> str:
    """Return the messages as text: one as its line, several as a list below their number, as many as there is room for."""
    texts = (" ".join(each.text.split()) for each in messages)
    lines = [text if len(text) <= LINE_CHARS else f"{text[: LINE_CHARS - 1]}…" for text in texts]
    if len(lines) == 1:
        return lines[0]
    kinds = Counter(each.event for each in messages)
    head = f"tpujob: {len(lines)} messages ({', '.join(f'{count} {event}' for event, count in kinds.items())})"
    for shown in range(min(len(lines), MOST_LINES), -1, -1):
        more = [f"… and {len(lines) - shown} more: `tpujob list`"] if shown < len(lines) else []
        text = "\n".join([head, *(f"• {line}" for line in lines[:shown]), *more])
        if len(text) <= MOST_CHARS and len(text.encode()) <= MOST_BYTES:
            break
    return text


def variables(messages: Sequence[Message]) -> dict[str, str]:
    """Return the environment variables that tell a command of these messages; what they do not share is left out."""
    told: dict[str, set[Any]] = {"EVENT": {each.event for each in messages}, "RUN": {each.run for each in messages}}
    told |= {key.upper(): {each.fields.get(key) for each in messages} for key in ("name", "state", "exit_code")}
    shared = {key: values.pop() for key, values in told.items() if len(values) == 1}
    found = {f"TPUJOB_{key}": str(value) for key, value in shared.items() if value is not None}
    return {"TPUJOB_EVENT": "several", **found, "TPUJOB_TEXT": in_words(messages), "TPUJOB_COUNT": str(len(messages))}
