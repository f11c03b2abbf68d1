// Stands where the loudspeaker does: tells every block that reaches it, with the frame at which it begins.
class Recorder extends AudioWorkletProcessor {
  process([input]) {
    if (input.length) this.port.postMessage({ frame: currentFrame, channels: input.map((channel) => channel.slice()) });
    return true;
  }
}

registerProcessor("recorder", Recorder);
