"""What every Google API needs: configuration, credentials, one HTTP request, errors with advice; and Cloud Storage.

`places.tpu.api`, the client and `settings` import it; it imports `core` and `errors`, never `places.tpu.api`.
"""
