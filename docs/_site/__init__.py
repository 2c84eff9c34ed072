"""What builds the documentation's site beside MkDocs: pages made of code, and links that lead out of docs/."""
