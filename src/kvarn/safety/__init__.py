"""What is looked at on the way in and out: moderation, and keeping personal data out of logs."""
