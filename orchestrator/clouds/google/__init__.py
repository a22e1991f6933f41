"""What every Google API needs: configuration, credentials, one HTTP request, errors with advice; and Cloud Storage.

`clouds.tpu`, the client and `settings` import it; it imports `core` and `errors`, never `clouds.tpu`.
"""
