"""What several rooms share: text for people, logs, files replaced atomically, bounded labels, the garbage collector."""
