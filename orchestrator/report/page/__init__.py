"""The report of a run, or of several, as one HTML page that needs no network.

`timeline` reads the ledger and the files of a run; all else is values in, text out. `api.results` writes the pages. What a page
shows comes from jobs and may be hostile: Jinja2 escapes it, and the policy of the page (`html`) lets no script run but its own.
"""
