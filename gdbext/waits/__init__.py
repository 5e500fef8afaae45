"""Recognisers: what does this thread wait for, and who holds it?"""
