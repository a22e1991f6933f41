"""Cloud Storage from a worker or a pod: the client, `data:` of a job, and results that go to a bucket."""
