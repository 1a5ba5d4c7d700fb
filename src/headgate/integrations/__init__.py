"""Limits for web frameworks, one thin module each, on the same rules, decisions and headers.

    asgi      middleware for any ASGI app
    wsgi      middleware for any WSGI app
    fastapi   `Depends(limit("10/minute"))`, for FastAPI and Starlette
    flask     an extension for Flask

None of them is imported by the rest of the package, and each imports its framework only.
"""
