export default {
  define: { 'process.env.NODE_ENV': '"production"', 'process.env': {}, global: 'globalThis' },
  build: { chunkSizeWarningLimit: 20000, minify: false },
  logLevel: 'warn',
};
