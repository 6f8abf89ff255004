"""`python -m research.corpus STORE`: the committed files from the store of a campaign."""

import sys
from pathlib import Path

from research.corpus import write_corpus

if __name__ == "__main__":
    write_corpus(Path(sys.argv[1]))
