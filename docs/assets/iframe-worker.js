// Browsers start no worker from a file: this one is a hidden frame, so that the search works without a server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inside = (this.inside = frame.contentWindow);
      inside.importScripts = () => Promise.resolve();
      inside.IFrameWorker = this.constructor;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.onload = () => {
        this.waiting.forEach((data) => this.send(data));
        this.waiting = null;
      };
      script.src = url;
      inside.document.body.appendChild(script);
    }

    postMessage(data) {
      this.waiting ? this.waiting.push(data) : this.send(data);
    }

    send(data) {
      this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {}
  };
}
