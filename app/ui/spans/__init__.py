"""What was read of a document, passage by passage."""
