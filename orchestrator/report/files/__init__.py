"""What the files of a run say: its metrics and its times. They come from a worker, so no shape of theirs is relied on."""
