def location():
    return None
