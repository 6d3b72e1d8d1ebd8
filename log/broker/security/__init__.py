"""Who a client is: logins by SASL, the principals they give, the settings of a listener about both. Pure; no I/O of its own."""

from .login import BEFORE_LOGIN, Exchange, Identity, Login, LoginCounts, LoginFailed, LoginPolicy, Step
from .principals import PrincipalRules
from .users import Users

__all__ = [
    "BEFORE_LOGIN",
    "Exchange",
    "Identity",
    "Login",
    "LoginCounts",
    "LoginFailed",
    "LoginPolicy",
    "PrincipalRules",
    "Step",
    "Users",
]
