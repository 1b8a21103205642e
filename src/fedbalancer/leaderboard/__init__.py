"""All results of a folder on one page: tasks x methods (`fedbalancer leaderboard`)."""
