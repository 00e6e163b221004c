"""What loading needs beside the engine: models from files, identities of weights, packed folders, progress."""
