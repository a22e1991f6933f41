"""What every Google API needs: credentials, one HTTP request, errors with advice; and Cloud Storage.

The APIs of all places stand on it, and it knows none of them.
"""
