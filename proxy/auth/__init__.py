"""Who a client is: what a SASL login proves, whose a delegation token is, and which source of identity counts."""
