"""What several parts of deploy share: text for people, logs, files read and replaced, the garbage collector."""
