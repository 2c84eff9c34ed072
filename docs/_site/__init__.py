"""What builds the documentation's site next to MkDocs: pages made of code, and links that lead out of docs/."""
