"""A rank of the corpus's campaign: that of `traincast.profile`, with the architectures of the corpus."""

import research.corpus.architectures  # noqa: F401
from traincast.profile._worker import main

if __name__ == "__main__":
    main()
