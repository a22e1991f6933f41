"""Text: names and labels, durations and sizes, redaction, terminal-safe lines, and the scripts that workers run.

Pure, and without knowledge of leases, plans or clouds. Every package but `vm` may import it.
"""
