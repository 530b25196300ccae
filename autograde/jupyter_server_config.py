"""Read by the JupyterLab of `make lab`: messages of a kernel go to the browser at once.

Jupyter's server leaves Nagle's algorithm on: what follows a kernel's short "busy" message waits until that one is
acknowledged, on Linux up to 40 ms. Half of all moves of a slider then feel twice as slow.
"""
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection


class PromptConnection(ZMQChannelsWebsocketConnection):
    """A kernel's connection to a browser with TCP_NODELAY."""

    async def connect(self):
        self.websocket_handler.set_nodelay(True)
        return await super().connect()


get_config().ServerApp.kernel_websocket_connection_class = PromptConnection  # noqa: F821
