"""What is concluded: findings, the verdict, repetition on a stack."""
