"""Who a client is: what a SASL login proves, who owns a delegation token, and which source of identity counts."""
